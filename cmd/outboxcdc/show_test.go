package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/outboxcdc/outboxcdc/router"
)

// TestLine checks that every record is one line of text without control characters, and that null differs from empty.
func TestLine(t *testing.T) {
	headers := []router.Header{
		{Name: "id", Value: []byte("7")},
		{Name: "type", Value: []byte("a b")},
		{Name: "nil"},
		{Name: "empty", Value: []byte{}},
		{Name: "outboxcdc-position", Value: []byte("1:2")},
		{Name: "a=b,c", Value: []byte("{}")},
	}
	for _, c := range []struct {
		key, value []byte
		payload    bool
		want       string
	}{
		{[]byte("42"), []byte(`{"a": "b"}`), true, `key=42 H bytes=10 value={"a": "b"}`},
		{[]byte("42"), []byte(`{"a": "b"}`), false, `key=42 H bytes=10`},
		{nil, nil, true, `H tombstone`},
		{[]byte(""), []byte{}, true, `key="" H bytes=0 value=""`},
		{[]byte("a\x1b[2Jb\n"), []byte("\xff\x00"), true, `key="a\x1b[2Jb\n" H bytes=2 value="\xff\x00"`},
		{[]byte(`"`), []byte("a\u202eb\nc"), true, `key="\"" H bytes=7 value="a\u202eb\nc"`},
		{[]byte("ü"), []byte(`"a`), true, `key=ü H bytes=2 value="\"a"`},
	} {
		const h = `headers={type="a b", nil, empty="", "a=b,c"="{}"}`
		var l line
		l.record(c.key, c.value, headers, c.payload)
		want := c.want
		for i := range len(want) {
			if want[i] == 'H' {
				want = want[:i] + h + want[i+1:]
				break
			}
		}
		if got := string(l.end()); got != want+"\n" {
			t.Errorf("%q %q\n is %s\nnot %s", c.key, c.value, got, want)
		}
	}
}

func TestRecordJSON(t *testing.T) {
	for _, c := range []struct {
		key, value []byte
		payload    bool
		want       string
	}{
		{[]byte("<ü>"), []byte("v"), true, `{"key":"<ü>","headers":[{"name":"h","value":null}],"bytes":1,"tombstone":false,"value":"v"}`},
		{[]byte("k"), []byte("v"), false, `{"key":"k","headers":[{"name":"h","value":null}],"bytes":1,"tombstone":false}`},
		{nil, nil, true, `{"key":null,"headers":[{"name":"h","value":null}],"bytes":0,"tombstone":true}`},
		{[]byte{0xff}, []byte{0xfe}, true, `{"key":null,"key_base64":"/w==","headers":[{"name":"h","value":null}],"bytes":1,"tombstone":false,"value_base64":"/g=="}`},
		{[]byte{}, []byte{}, true, `{"key":"","headers":[{"name":"h","value":null}],"bytes":0,"tombstone":false,"value":""}`},
	} {
		var b bytes.Buffer
		err := writeJSON(&b, newRecordJSON(c.key, c.value, []router.Header{{Name: "h"}}, c.payload))
		if err != nil || b.String() != c.want+"\n" || !json.Valid(b.Bytes()) {
			t.Errorf("%q %q %v\n is %s\nnot %s", c.key, c.value, err, &b, c.want)
		}
	}
}
