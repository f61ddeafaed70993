"""Jobs that do not depend on each other: one after the other, or on many machines by Ray, which is optional."""
