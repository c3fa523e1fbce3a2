"""To integers and back, at run time as well, and changes of their parameters."""
