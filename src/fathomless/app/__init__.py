"""The application: command line, run folders, doctor, page. May import everything."""
