"""What delivery needs: connections, DNS, policies, keys, lists."""
