package router

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestMembers(t *testing.T) {
	deep := strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1)
	for _, tt := range []struct{ in, want string }{
		{`{}`, ``},
		{` { } `, ``},
		{`{"a": "x", "b": "y"}`, `a="x" b="y"`},
		{"{\n\"b\"\t:\r\"y\" , \"a\":\"x\"}\n", `b="y" a="x"`},       // json keeps its white space and order
		{`{"a":1,"a":2}`, `a="1" a="2"`},                             // json keeps both
		{`{"a": null, "b": "null", "c": ""}`, `a=nil b="null" c=""`}, //
		{`{"n": 1234567890123456789, "m": -1.50e+10}`, `n="1234567890123456789" m="-1.50e+10"`},
		{`{"n": 12345678901234567890123456789.0100}`, `n="12345678901234567890123456789.0100"`},
		{`{"t": true, "f": false}`, `t="true" f="false"`},
		{`{"o": {"b": [1, 2, {"c": " x, } "}], "a": null}, "e": {}, "l": []}`, `o="{\"b\":[1,2,{\"c\":\" x, } \"}],\"a\":null}" e="{}" l="[]"`},
		{`{"o": {"k\"ey": "\u00e9\\\" ", "k": "<&>"}}`, `o="{\"k\\\"ey\":\"\\u00e9\\\\\\\" \",\"k\":\"<&>\"}"`}, // nested: text, not meaning
		{`{"o":[1,"a b"]}`, `o="[1,\"a b\"]"`},
		{`{"s": "\"\\\/\b\f\n\r\t\u00e9\u20AC\ud83d\ude00"}`, `s="\"\\/\b\f\n\r\té€😀"`},
		{`{"s": "\ud83d", "t": "\ude00x", "u": "\ud83d\u0041", "v": "\ud83d\n"}`, "s=\"\ufffd\" t=\"\ufffdx\" u=\"\ufffdA\" v=\"\ufffd\\n\""},
		{`{"s": "\\"}`, `s="\\"`},
		{`{"s": "\u0000"}`, `s="\x00"`},
		{`{"caf\u00e9": "1", "": "2", "a\"b": "3"}`, `café="1" ="2" a"b="3"`},
		{`{"é": "é"}`, `é="é"`},
		{"{\"s\": \"\xff\\n\xfe\"}", `s="\xff\n\xfe"`}, // SQL_ASCII
		{`{"Id": 1, "TYPE": 2, "outboxcdc": 3, "types": 4}`, `Id="1" TYPE="2" outboxcdc="3" types="4"`},
		{`{"d": ` + deep + `}`, `d="` + deep + `"`},

		{`{"id": "x"}`, `! has a member "id", a reserved name`},
		{`{"a": 1, "type": null}`, `! has a member "type", a reserved name`},
		{`{"\u0069d": "x"}`, `! has a member "id", a reserved name`},
		{`{"outboxcdc-position": "x"}`, `! has a member "outboxcdc-position", a reserved name`},
		{`{"outboxcdc-": "x"}`, `! has a member "outboxcdc-", a reserved name`},
		{`[]`, `! is not a JSON object`},
		{` "a"`, `! is not a JSON object`},
		{`1`, `! is not a JSON object`},
		{`null`, `! is not a JSON object`},
		{``, `! is not valid JSON`},
		{` `, `! is not valid JSON`},
		{`{`, `! is not valid JSON`},
		{`{"a": 1`, `! is not valid JSON`},
		{`{"a": 01}`, `! is not valid JSON`},
		{`{"a": NaN}`, `! is not valid JSON`},
		{`{"a": 1,}`, `! is not valid JSON`},
		{`{"a": "\x"}`, `! is not valid JSON`},
		{`{"a": "\u00"}`, `! is not valid JSON`},
		{`{"a": [1,]}`, `! is not valid JSON`},
		{`{"a": {"b" 1}}`, `! is not valid JSON`},
		{`{"a" "b"}`, `! is not valid JSON`},
		{`{,}`, `! is not valid JSON`},
		{`{"id": 1, "a": [}]}`, `! is not valid JSON`}, // whatever else is wrong
		{`[1,`, `! is not valid JSON`},
		{`{"d": [` + deep + `]}`, `! is not valid JSON`},
		{`{} {}`, `! is not valid JSON`},
		{"{\"a\": \"\n\"}", `! is not valid JSON`},
		{`\x7b7d`, `! is not valid JSON`},                                                                  // a bytea column
		{strings.Repeat(`{"a":`, 5_000_000) + "1" + strings.Repeat("}", 5_000_000), `! is not valid JSON`}, // no stack overflow
	} {
		r := newRouter(t, nil)
		var rec Record
		in := []byte(tt.in)
		why := r.appendMembers(in, &rec)
		var got []string
		for _, h := range rec.Headers {
			if h.Value == nil {
				got = append(got, h.Name+"=nil")
				continue
			}
			got = append(got, fmt.Sprintf("%s=%q", h.Name, h.Value))
		}
		line := strings.Join(got, " ")
		if why != "" {
			line = "! " + why
		}
		if line != tt.want {
			t.Errorf("%.80s\n got %.200s\nwant %.200s", tt.in, line, tt.want)
		}
		if string(in) != tt.in {
			t.Errorf("%.80s: the event was written to", tt.in)
		}
	}
}

// FuzzHeaders compares appendMembers with encoding/json: both accept the same input, and give the same members in the
// same order.
func FuzzHeaders(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a": "x", "b": null}`, `{"a":1.50,"a":[1, {"b" : "c d"}]}`, ` {"s": "\ud83d\ude00\ud83d\u0041\"\\\/"} `, `[]`, `{"id":1}`,
		`{"\u0069d":1}`, `{"a":{"b":[[]]},"c":-1e5}`, "{\"\xff\":\"\\n\xfe\"}", `{"a":tru}`, `nul`, `{"a":"\u12"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := newRouter(t, nil)
		var rec Record
		why := r.appendMembers(in, &rec)
		want, wantWhy := decodeMembers(in)
		if strings.HasSuffix(why, "a name that is not UTF-8") && !utf8.Valid(in) {
			return // encoding/json changes the name
		}
		if (why == "") != wantWhy {
			t.Fatalf("%q: %q, encoding/json says %v", in, why, wantWhy)
		}
		if why != "" {
			return
		}
		if len(want) != len(rec.Headers) {
			t.Fatalf("%q: %d headers, want %d", in, len(rec.Headers), len(want))
		}
		for i, h := range rec.Headers {
			if (h.Value == nil) != (want[i].Value == nil) {
				t.Fatalf("%q: header %d is nil: %v", in, i, h.Value == nil)
			}
			if !utf8.Valid(in) {
				continue // encoding/json replaces what is not UTF-8
			}
			if h.Name != want[i].Name || !bytes.Equal(h.Value, want[i].Value) {
				t.Fatalf("%q: header %d is %q=%q, want %q=%q", in, i, h.Name, h.Value, want[i].Name, want[i].Value)
			}
		}
	})
}

// decodeMembers is appendMembers with a json.Decoder.
func decodeMembers(in []byte) ([]Header, bool) {
	if !json.Valid(in) {
		return nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(in))
	if tok, _ := dec.Token(); tok != json.Delim('{') {
		return nil, false
	}
	var hs []Header
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			panic(err)
		}
		name := tok.(string)
		if name == "id" || name == "type" || strings.HasPrefix(name, "outboxcdc-") {
			return nil, false
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			panic(err)
		}
		var value []byte
		switch raw[0] {
		case 'n':
		case '"':
			var s string
			if err := json.Unmarshal(raw, &s); err != nil {
				panic(err)
			}
			value = []byte(s)
		default:
			var b bytes.Buffer
			if err := json.Compact(&b, raw); err != nil {
				panic(err)
			}
			value = b.Bytes()
		}
		hs = append(hs, Header{Name: name, Value: value})
	}
	return hs, true
}
