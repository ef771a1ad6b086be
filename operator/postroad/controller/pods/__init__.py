"""Children that run pods: Deployments, Services, jobs, and their upgrades."""
