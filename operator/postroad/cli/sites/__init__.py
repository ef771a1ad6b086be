"""Commands on sites, routes, suppression and signing."""
