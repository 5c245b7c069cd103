"""What every other wing uses: errors, processes, settings; it imports no other wing."""
