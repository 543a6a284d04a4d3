"""The paper's comparisons: variants trained with one equal budget, scored and measured alike, as tables."""
