"""Parts of the prefix page: its controls, the columns of its tables, the player in words."""
