package httpsink

import (
	"cmp"
	"encoding/base64"
	"net/url"
	"slices"
	"strings"
)

// A text of the address that is shorter is no secret. Errors would be hard to read without it.
const (
	minParameter = 4 // in the query
	minSegment   = 8 // of the path
)

// secretsOf returns the parts of the address that a receiver may repeat in an answer, decoded and as they are sent, and
// that errors must not have: all but the host and the user.
func secretsOf(t *Target) (all []string) {
	u, err := url.Parse(t.URL)
	if err != nil {
		return nil
	}
	add := func(least int, texts ...string) {
		for _, text := range texts {
			for part := range strings.SplitSeq(text, topicInURL) {
				if len(part) >= least {
					all = append(all, part)
				}
			}
		}
	}
	if password, ok := u.User.Password(); ok {
		add(1, password, base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password)))
	}
	for _, path := range []string{u.Path, cmp.Or(u.RawPath, u.EscapedPath())} {
		add(minSegment, path)
		add(minSegment, strings.Split(path, "/")...)
	}
	add(minParameter, u.RawQuery)
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		name, value, named := strings.Cut(pair, "=")
		if !named {
			value = name
		}
		add(minParameter, value)
		if decoded, err := url.QueryUnescape(value); err == nil {
			add(minParameter, decoded)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) }) // a secret may be a part of another one
	return all
}

// withoutSecrets masks the secrets in a text. One of the length maxQuoted may have been cut off in a secret.
func (t *transport) withoutSecrets(text string) string {
	wasCut := len(text) == maxQuoted
	for _, s := range t.secrets {
		text = strings.ReplaceAll(text, s, masked)
	}
	for _, s := range t.secrets {
		for n := len(s) - 1; wasCut && n > 0; n-- {
			if rest, is := strings.CutSuffix(text, s[:n]); is {
				text = rest + masked
			}
		}
	}
	return text
}

const masked = "xxxxx"
