"""What every other wing stands on: errors, processes, settings; it imports none of them."""
