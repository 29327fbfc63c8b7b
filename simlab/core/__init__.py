"""What every room stands on: catalogs, random streams, results with manifests, experiments."""
