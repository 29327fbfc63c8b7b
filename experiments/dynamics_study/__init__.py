"""What the experiments about dynamics share: runs into one store, tables, measures, rules, other studies."""
