"""The page at `/dashboard`: files that a browser runs, and the route that gives them. It knows the public API alone."""
