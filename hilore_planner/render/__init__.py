"""Plans as text for people and as records for programs."""
