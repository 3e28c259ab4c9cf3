package main

var (
	schemas     = suite{"./outbox/registry", "^Test"}
	schemaLinks = suite{"./router", "^(TestCloudEvents|TestEnvelope)$"}
)

// registryMutants have one rule wrong about events with a schema of a registry.
var registryMutants = []mutant{
	wrong("schema-asked-for-again", "A schema that has an id is registered again.",
		edits{{"outbox/registry/registry.go", "if d.ID() != 0 {", "if d.ID() < 0 {"}}, schemas),
	wrong("schema-without-an-id", "An event may have the id 0.",
		edits{{"outbox/registry/registry.go", "(id <= 0 ||", "(id < 0 ||"}}, schemas),
	wrong("schema-compatible-unless-told", "A registry that does not say that a schema is compatible accepts it.",
		edits{{"outbox/registry/registry.go", "case !answer.Is:", "case !answer.Is && len(answer.Messages) > 0:"}}, schemas),
	wrong("schema-message-by-its-number-alone", "The path to a message in its file is its number among its siblings.",
		edits{{"outbox/registry/formats.go", "append(messageIndex(message.Parent()), message.Index())", "[]int{message.Index()}"}}, schemas),
	wrong("schema-link-without-an-id", "An event without the header schema_id has a link to a schema.",
		edits{{"router/format.go", "h.Name == schemaName && len(h.Value) > 0", "i == 0 || h.Name == schemaName"}}, schemaLinks),
}
