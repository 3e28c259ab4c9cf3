package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
)

// The page at / shows /status. It is one file that loads nothing else, so that it works without internet access, behind
// a proxy and on a phone. Its Content-Security-Policy allows only the script and the style that it contains.

//go:embed page/page.html
var pageHTML string

//go:embed page/page.css
var pageCSS string

//go:embed page/page.js
var pageJS string

func page() http.Handler {
	text := strings.NewReplacer("{{.CSS}}", pageCSS, "{{.JS}}", pageJS).Replace(pageHTML)
	policy := strings.Join([]string{
		"default-src 'none'", "connect-src 'self'", "img-src data:", "style-src " + hashSource(pageCSS), "script-src " + hashSource(pageJS),
		"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
	}, "; ")
	header := http.Header{
		"Content-Type": {"text/html; charset=utf-8"}, "Cache-Control": {"no-store"}, "Content-Security-Policy": {policy},
		"X-Content-Type-Options": {"nosniff"}, "Referrer-Policy": {"no-referrer"},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		whole := rendered{status: http.StatusOK, header: header, body: *bytes.NewBufferString(text)}
		whole.writeTo(w)
	})
}

// hashSource is the source expression of an inline script or style in a Content-Security-Policy.
func hashSource(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
