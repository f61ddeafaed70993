"""The paper's own three kernels, made of those of `kernels/`, for rows V3 and V4; the engine does not launch them."""
