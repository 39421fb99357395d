"""``hilore bench risk``: predicted against measured gradient error, on weights trained for the purpose."""
