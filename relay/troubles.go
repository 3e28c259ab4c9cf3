package relay

import "time"

// maxTroubles is how many of the last troubles are kept.
const maxTroubles = 8

// Trouble is a reason for which delivery stood still. One that comes again at each attempt is counted, not repeated.
type Trouble struct {
	State State     `json:"state"`
	Error string    `json:"error"` // the text of the last time
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Count int       `json:"count"`

	label string
}

// noteTrouble notes a trouble that label tells from others; the newest is the last.
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
