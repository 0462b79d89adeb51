package server

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/swaggest/swgui/v5/static"
)

// openAPI is the public interface, for programs. A test holds it against the routes and
// the catalogue.
//
//go:embed openapi.yaml
var openAPI []byte

// docsPage shows openAPI to people, with Swagger UI.
//
//go:embed docs/index.html
var docsPage []byte

//go:embed docs/start.js
var docsScript []byte

// docsPolicy keeps the page to this host: a token typed into it goes nowhere else.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// A page is a file that anybody may read.
type page struct {
	contentType, encoding string
	content               []byte
	tag                   string // its entity tag (RFC 9110, 8.8.3)
}

func newPage(contentType, encoding string, content []byte) page {
	digest := sha256.Sum256(content)
	return page{contentType, encoding, content, fmt.Sprintf("\"%x\"", digest[:16])}
}

// serve answers a request for the page, with 304 if the client has it.
func (p page) serve(c echo.Context) error {
	header := c.Response().Header()
	header.Set(echo.HeaderXContentTypeOptions, "nosniff")
	header.Set(echo.HeaderCacheControl, "no-cache") // ask each time
	header.Set("ETag", p.tag)
	// The header may be a list. No other tag in it contains this one, which has its quotes.
	if known := c.Request().Header.Get("If-None-Match"); known == "*" || strings.Contains(known, p.tag) {
		return c.NoContent(http.StatusNotModified)
	}
	if p.encoding != "" {
		header.Set(echo.HeaderContentEncoding, p.encoding)
	}
	header.Set(echo.HeaderContentLength, strconv.Itoa(len(p.content)))
	return c.Blob(http.StatusOK, p.contentType, p.content)
}

// docsAssets are the files of the page. Swagger UI's are embedded and sent compressed: every
// browser takes gzip.
var docsAssets = map[string]page{
	"start.js":             newPage("text/javascript; charset=utf-8", "", docsScript),
	"swagger-ui-bundle.js": newPage("text/javascript; charset=utf-8", "gzip", swaggerUI("swagger-ui-bundle.js.gz")),
	"swagger-ui.css":       newPage("text/css; charset=utf-8", "gzip", swaggerUI("swagger-ui.css.gz")),
	"favicon-32x32.png":    newPage("image/png", "", swaggerUI("favicon-32x32.png")),
}

func swaggerUI(file string) []byte {
	content, err := static.FS.ReadFile(file)
	if err != nil {
		panic(err) // the embedded file is always there
	}
	return content
}

var openAPIPage = newPage("application/yaml", "", openAPI)

var docs = newPage(echo.MIMETextHTMLCharsetUTF8, "", docsPage)

func serveDocs(c echo.Context) error {
	c.Response().Header().Set(echo.HeaderContentSecurityPolicy, docsPolicy)
	return docs.serve(c)
}

func serveDocsAsset(c echo.Context) error {
	asset, ok := docsAssets[c.Param("asset")]
	if !ok {
		return errNoRoute
	}
	return asset.serve(c)
}
