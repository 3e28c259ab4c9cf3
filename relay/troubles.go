package relay

import "time"

// maxTroubles is how many of the last troubles are kept.
const maxTroubles = 8

// Trouble is a reason why delivery was interrupted. A trouble that repeats at each attempt is counted.
type Trouble struct {
	State State     `json:"state"`
	Error string    `json:"error"` // the latest text
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Count int       `json:"count"`

	label string
}

// noteTrouble adds a trouble, or counts it if it is the last one again. Two troubles are the same if state and label
// are.
func (v *view) noteTrouble(s State, label, text string, now time.Time) {
	if n := len(v.troubles); n > 0 && v.troubles[n-1].State == s && v.troubles[n-1].label == label {
		t := &v.troubles[n-1]
		t.Error, t.Last = text, now
		t.Count++
		return
	}
	if len(v.troubles) == maxTroubles {
		v.troubles = append(v.troubles[:0], v.troubles[1:]...)
	}
	v.troubles = append(v.troubles, Trouble{State: s, Error: text, First: now, Last: now, Count: 1, label: label})
}
