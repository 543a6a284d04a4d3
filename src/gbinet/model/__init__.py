"""The network: batch of images and cameras -> depth. Plain torch; ops/ holds the faster kernels."""
