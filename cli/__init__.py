"""The `grace` command: one short file per command, in folders by subject."""
