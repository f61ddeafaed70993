"""Pictures of profiles and drift; the only folder that imports matplotlib."""
