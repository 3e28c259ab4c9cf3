package deadletter

// IsOpen returns a function that reports whether a letter is open, according to the group's offsets when they were read
// last.
func (l *Topic) IsOpen() func(partition int32, offset int64) bool {
	now := map[int32]handled{}
	for i := range l.parts {
		now[l.parts[i].id] = l.parts[i].clone()
	}
	return func(partition int32, offset int64) bool {
		h := now[partition]
		return !h.has(offset)
	}
}
