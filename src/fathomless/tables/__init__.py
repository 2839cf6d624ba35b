"""Files of tables, read and written. May import `system`."""
