"""The program: watches, the work queue, and the controller that they feed."""
