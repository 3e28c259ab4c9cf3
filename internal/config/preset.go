package config

// PresetDebezium is the preset for outbox tables that were made for Debezium's event router.
const PresetDebezium = "debezium"

// originPreset is who has set what applyPreset sets.
const originPreset = "preset: " + PresetDebezium

// applyPreset gives the preset's default to what is not set.
func (c *Config) applyPreset() {
	if c.Preset != PresetDebezium {
		return
	}
	cols, r := &c.Outbox.Columns, &c.Route
	for path, set := range map[string]func(){
		"outbox.columns.aggregate_type": func() { cols.AggregateType = "aggregatetype" },
		"outbox.columns.aggregate_id":   func() { cols.AggregateID = "aggregateid" },
		"outbox.columns.event_type":     func() { cols.EventType = "" }, // the router sends its column "type" only if told to
		"outbox.columns.headers":        func() { cols.Headers = "" },
		"route.unmatched":               func() { r.Unmatched = "keep" },
		"route.null_key":                func() { r.NullKey = "allow" },
		"route.position_header":         func() { r.PositionHeader = false },
		"delivery.mode":                 func() { c.Delivery.Mode = AtLeastOnce }, // needs no position header
	} {
		if c.origins[path] == "" {
			set()
			c.origins[path] = originPreset
		}
	}
}
