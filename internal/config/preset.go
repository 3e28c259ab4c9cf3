package config

// PresetDebezium is the preset for outbox tables of Debezium's event router.
const PresetDebezium = "debezium"

// originPreset is the origin of settings that applyPreset sets.
const originPreset = "preset: " + PresetDebezium

// applyPreset sets the defaults of the preset.
func (c *Config) applyPreset() {
	if c.Preset != PresetDebezium {
		return
	}
	cols, r := &c.Outbox.Columns, &c.Route
	for path, set := range map[string]func(){
		"outbox.columns.aggregate_type": func() { cols.AggregateType = "aggregatetype" },
		"outbox.columns.aggregate_id":   func() { cols.AggregateID = "aggregateid" },
		"outbox.columns.event_type":     func() { cols.EventType = "" }, // the event router sends the column "type" only if configured
		"outbox.columns.headers":        func() { cols.Headers = "" },
		"route.unmatched":               func() { r.Unmatched = "keep" },
		"route.null_key":                func() { r.NullKey = "allow" },
		"route.position_header":         func() { r.PositionHeader = false },
		"delivery.mode":                 func() { c.Delivery.Mode = AtLeastOnce }, // needs no position header
		"poison.policy":                 func() { c.Poison.Policy = "stop" },      // likewise
	} {
		if c.origins[path] == "" {
			set()
			c.origins[path] = originPreset
		}
	}
}

// applySink sets the defaults of sinks that are not Kafka, where no dead letter can be read.
func (c *Config) applySink() {
	if path := "poison.policy"; c.HasReceiver() && c.origins[path] == "" {
		c.Poison.Policy = "stop"
		c.origins[path] = "sink: " + c.Sink
	}
}
