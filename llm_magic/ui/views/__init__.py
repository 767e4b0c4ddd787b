"""Static HTML and text views of a reply, readable without a kernel."""
