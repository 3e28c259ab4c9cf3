package checkpoint

// OpenKeys are the keys that open letters hold, as a command has read them, and those that the command itself holds. It
// is for commands that only ask; the daemon has HeldKeys. Nil holds nothing.
type OpenKeys struct{ by map[[2]string]openKey }

type openKey struct {
	by   string
	ours bool // the command has sent the first letter
}

// Note notes an open letter of an earlier process.
func (o *OpenKeys) Note(topic string, key []byte, by string) { o.note(topic, key, openKey{by, false}) }

// Hold notes that the command sends a letter that holds its key.
func (o *OpenKeys) Hold(topic string, key []byte, by string) { o.note(topic, key, openKey{by, true}) }

func (o *OpenKeys) note(topic string, key []byte, k openKey) {
	if o.by == nil {
		o.by = map[[2]string]openKey{}
	}
	if _, is := o.by[[2]string{topic, string(key)}]; !is {
		o.by[[2]string{topic, string(key)}] = k
	}
}

// By returns the event that holds a key, and whether the command has sent its letter; "": the key is free. An event
// without a key is never held.
func (o *OpenKeys) By(topic string, key []byte) (by string, ours bool) {
	if o == nil || key == nil {
		return "", false
	}
	k := o.by[[2]string{topic, string(key)}]
	return k.by, k.ours
}
