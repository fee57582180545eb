"""Charts described once, as plain data, with a page form (SVG) and a print form (SVG and PDF)."""
