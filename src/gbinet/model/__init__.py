"""The network: batch of images and cameras -> depth. Plain torch; kernels/ holds faster twins."""
