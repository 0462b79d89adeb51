package server

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDocsLoadOwnFilesOnly(t *testing.T) {
	t.Parallel()
	s := New(testConfig())
	page, described := s.ask(t, request{method: "GET", target: "/docs"}), s.ask(t, request{method: "GET", target: "/openapi.yaml"})
	if got := described.header.Get("Content-Type"); got != "application/yaml" || !bytes.Equal(described.body, openAPI) {
		t.Errorf("/openapi.yaml: Content-Type %q and %d bytes, want application/yaml and the %d of the file", got, len(described.body), len(openAPI))
	}
	for name, want := range map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
			"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		"X-Content-Type-Options": "nosniff",
		"Content-Type":           "text/html; charset=UTF-8",
	} {
		if got := page.header.Get(name); got != want {
			t.Errorf("%s %q of the page, want %q", name, got, want)
		}
	}

	var loaded []string
	for _, match := range regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllSubmatch(page.body, -1) {
		if name, ok := strings.CutPrefix(string(match[1]), "docs/"); ok {
			loaded = append(loaded, name)
		} else if string(match[1]) != "openapi.yaml" {
			t.Errorf("page refers to %s, want relative paths to what is served here", match[1])
		}
	}
	slices.Sort(loaded)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(docsAssets)), loaded); diff != "" {
		t.Errorf("files that are served (-) and that the page loads (+) differ:\n%s", diff)
	}
	for _, name := range loaded {
		a := s.ask(t, request{method: "GET", target: "/docs/" + name})
		status, header, body := a.status, a.header, a.body
		if status != http.StatusOK || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v, want 200 and nosniff", name, status, header)
		}
		encoding := map[bool]string{true: "gzip"}[strings.HasPrefix(name, "swagger-ui")]
		if got := header.Get("Content-Encoding"); got != encoding {
			t.Errorf("%s: Content-Encoding %q, want %q", name, got, encoding)
		}
		if encoding == "gzip" {
			r, err := gzip.NewReader(bytes.NewReader(body))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if body, err = io.ReadAll(r); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got, want := http.DetectContentType(body), header.Get("Content-Type"); got != want && !strings.HasPrefix(want, "text/") {
			t.Errorf("%s: Content-Type %q, want %q", name, want, got)
		}
	}
}

// A browser that has a page gets a 304.
func TestCachedDocsGet304(t *testing.T) {
	t.Parallel()
	s := New(testConfig())
	tags := make(map[string]string)
	targets := []string{"/docs", "/openapi.yaml"}
	for name := range docsAssets {
		targets = append(targets, "/docs/"+name)
	}
	for _, target := range targets {
		for _, method := range []string{"GET", "HEAD"} {
			first := s.ask(t, request{method: method, target: target})
			tag := first.header.Get("ETag")
			if other, twice := tags[tag]; twice && other != target || first.header.Get("Cache-Control") != "no-cache" {
				t.Errorf("%s: ETag %s is that of %q, too, or Cache-Control %q is not no-cache", target, tag, other, first.header.Get("Cache-Control"))
			}
			tags[tag] = target
			for known, want := range map[string]int{tag: 304, "W/" + tag: 304, `"x", ` + tag: 304, "*": 304, `"x"`: 200, "": 200} {
				a := s.ask(t, request{method: method, target: target, headers: []string{"If-None-Match: " + known}})
				if a.status != want || a.header.Get("ETag") != tag || (len(a.body) > 0) != (want == 200 && method == "GET") {
					t.Errorf("%s %s with If-None-Match %s: %d, ETag %s and %d bytes, want %d and %s", method, target, known, a.status, a.header.Get("ETag"), len(a.body), want, tag)
				}
			}
		}
	}
}
