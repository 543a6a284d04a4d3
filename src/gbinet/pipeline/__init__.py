"""Where the packages meet: from photos to a cloud, its record and its report."""
