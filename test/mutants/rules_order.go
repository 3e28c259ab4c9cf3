package main

var orders = suite{"./internal/outboxtable", "^TestOrderOfRows$/^18$"}

// orderMutants has mutants of the order in which commands read rows.
var orderMutants = []mutant{
	{
		name:  "order-by-created-at",
		rule:  "The rows of a transaction are read in the order of their place in the table.",
		edits: []edit{{"internal/outboxtable/order.go", "if len(by) == 0 && t.sequence != nil {", "if len(by) == len(t.columns) && t.sequence != nil {"}},
		tests: []suite{orders},
	},
	{
		name:  "order-by-any-column",
		rule:  "Every integer column seq has the order of the inserts.",
		edits: []edit{{"internal/outboxtable/order.go", "case sequence == \"\" || !c.identity && !nextValue.MatchString(c.value):", "case false:"}},
		tests: []suite{orders},
	},
	{
		name:  "order-by-any-default",
		rule:  "A default that contains a sequence has its order.",
		edits: []edit{{"internal/outboxtable/order.go", "case sequence == \"\" || !c.identity && !nextValue.MatchString(c.value):", "case sequence == \"\":"}},
		tests: []suite{orders},
	},
	{
		name:  "order-by-cached-values",
		rule:  "Sessions that take ranges of values insert in the order of the values.",
		edits: []edit{{"internal/outboxtable/order.go", "case c.cache > 1:", "case false:"}},
		tests: []suite{orders},
	},
	{
		name:  "order-by-several-sequences",
		rule:  "The values of two sequences have one order.",
		edits: []edit{{"internal/outboxtable/order.go", "IS DISTINCT FROM root.value", "IS NULL"}},
		tests: []suite{orders},
	},
	{
		name:  "order-of-rows-without-a-value",
		rule:  "Rows that are older than the sequence come last.",
		edits: []edit{{"internal/outboxtable/order.go", "if !t.sequence.notNull {", "if false {"}},
		tests: []suite{orders},
	},
}
