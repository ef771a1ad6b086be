"""Routes of mail: from a recipient's domain, the sender, the tenant, a routing table and answers of
DNS to next hops in order. The room asks by yielding questions, which its caller looks up."""
