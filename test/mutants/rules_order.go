package main

var orders = suite{"./internal/outboxtable", "^TestOrderOfRows$/^18$"}

// orderMutants has mutants of the order in which commands read rows.
var orderMutants = []mutant{
	wrong("order-by-created-at", "The rows of a transaction are read in the order of their place in the table.",
		edits{{"internal/outboxtable/order.go", "if len(by) == 0 && t.sequence != nil {", "if len(by) == len(t.columns) && t.sequence != nil {"}}, orders),
	wrong("order-by-any-column", "Every integer column seq has the order of the inserts.",
		edits{{"internal/outboxtable/order.go", "case sequence == \"\" || !c.identity && !nextValue.MatchString(c.value):", "case false:"}}, orders),
	wrong("order-by-any-default", "A default that contains a sequence has its order.",
		edits{{"internal/outboxtable/order.go", "case sequence == \"\" || !c.identity && !nextValue.MatchString(c.value):", "case sequence == \"\":"}}, orders),
	wrong("order-by-cached-values", "Sessions that take ranges of values insert in the order of the values.",
		edits{{"internal/outboxtable/order.go", "case c.cache > 1:", "case false:"}}, orders),
	wrong("order-by-several-sequences", "The values of two sequences have one order.",
		edits{{"internal/outboxtable/order.go", "IS DISTINCT FROM root.value", "IS NULL"}}, orders),
	wrong("order-of-rows-without-a-value", "Rows that are older than the sequence come last.",
		edits{{"internal/outboxtable/order.go", "if !t.sequence.notNull {", "if false {"}}, orders),
}
