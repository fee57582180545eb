"""What can be said about results, and how surely."""
