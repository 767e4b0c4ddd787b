"""Many requests on one forward pass: queue, slots, batches, sampling."""
