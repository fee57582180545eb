"""Charts described as plain data and drawn once, for pages and for print."""
