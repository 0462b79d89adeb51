package internal_test

import (
	"cmp"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"plantstore/internal/readme"
)

func exists(t *testing.T, name string) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(readme.Top(t), name))
	return err == nil
}

var fence = regexp.MustCompile("(?ms)^ *```.*?^ *```$")

// codeOf returns the code in a manual: spans in sentences, and lines of blocks.
func codeOf(text string) []string {
	var code []string
	for _, block := range fence.FindAllString(text, -1) {
		code = append(code, strings.Split(block, "\n")...)
	}
	for _, span := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		code = append(code, span[1])
	}
	return code
}

// anchors are the names of a manual's headings in links.
func anchors(text string) map[string]bool {
	all := make(map[string]bool)
	notInAnchors := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		name := notInAnchors.ReplaceAllString(strings.ToLower(heading[1]), "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}

func TestLinksOfManualsResolve(t *testing.T) {
	t.Parallel()
	all := readme.Manuals(t)
	linked := map[string]bool{"README.md": true}
	for manual, text := range all {
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			target, anchor, _ := strings.Cut(link[1], "#")
			file := path.Join(path.Dir(manual), cmp.Or(target, path.Base(manual)))
			linked[file], linked[path.Join(file, "README.md")] = true, true
			switch {
			case !exists(t, file):
				t.Errorf("%s links to %s, which does not exist", manual, link[1])
			case anchor != "" && !anchors(all[file])[anchor]:
				t.Errorf("%s links to %s, and %s has no such heading", manual, link[1], file)
			}
		}
	}
	for manual := range all {
		if !linked[manual] {
			t.Errorf("no manual links to %s", manual)
		}
	}
}

// Code is named as "`this` in [file](file)", or in a table with the file in the next cell.
func TestManualsNameCodeInItsFile(t *testing.T) {
	t.Parallel()
	place := regexp.MustCompile("(`\\w+`(?:, `\\w+`)*)(?: in | \\| )\\[[^]]+\\]\\(([^)#]+)\\)")
	named := 0
	for manual, text := range readme.Manuals(t) {
		for _, m := range place.FindAllStringSubmatch(text, -1) {
			file := path.Join(path.Dir(manual), m[2])
			if path.Ext(file) != ".go" && path.Ext(file) != ".sql" {
				continue
			}
			for _, name := range regexp.MustCompile(`\w+`).FindAllString(m[1], -1) {
				named++
				if !regexp.MustCompile(`\b(func|type|var|const|FUNCTION|TRIGGER)\b[^\n]*\b` + name + `\b`).MatchString(readme.Read(t, file)) {
					t.Errorf("%s says that %s is in %s, but it is not", manual, name, file)
				}
			}
		}
	}
	if named == 0 {
		t.Error("no manual names code: the expression does not find it")
	}
}

func TestManualsNameExistingMakeTargets(t *testing.T) {
	t.Parallel()
	makefile := readme.Read(t, "Makefile")
	target := regexp.MustCompile(`\bmake ([a-z]+)\b`)
	for manual, text := range readme.Manuals(t) {
		for _, code := range codeOf(text) {
			for _, m := range target.FindAllStringSubmatch(code, -1) {
				if !strings.Contains(makefile, "\n"+m[1]+": ## ") {
					t.Errorf("%s names 'make %s', which the Makefile does not have", manual, m[1])
				}
			}
		}
	}
}

func TestEveryPackageIsInTheArchitecture(t *testing.T) {
	t.Parallel()
	_, architecture, _ := strings.Cut(readme.Read(t, "internal/README.md"), "\n## Architecture\n")
	architecture, _, _ = strings.Cut(architecture, "\nImports run one way")
	for room := range mayImport {
		room, inside := strings.CutPrefix(room, "internal/")
		room, _, _ = strings.Cut(room, "/")
		if inside && !strings.Contains(architecture, "| ["+room+"]("+room+") |") {
			t.Errorf("internal/README.md does not say what internal/%s does", room)
		}
	}
}
