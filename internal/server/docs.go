package server

import (
	_ "embed"
	"net/http"

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
}

// serve answers a request for the page.
func (p page) serve(c echo.Context) error {
	header := c.Response().Header()
	header.Set(echo.HeaderXContentTypeOptions, "nosniff")
	if p.encoding != "" {
		header.Set(echo.HeaderContentEncoding, p.encoding)
	}
	return c.Blob(http.StatusOK, p.contentType, p.content)
}

// docsAssets are the files of the page. Swagger UI's are embedded and sent compressed: every
// browser takes gzip.
var docsAssets = map[string]page{
	"start.js":             {"text/javascript; charset=utf-8", "", docsScript},
	"swagger-ui-bundle.js": {"text/javascript; charset=utf-8", "gzip", swaggerUI("swagger-ui-bundle.js.gz")},
	"swagger-ui.css":       {"text/css; charset=utf-8", "gzip", swaggerUI("swagger-ui.css.gz")},
	"favicon-32x32.png":    {"image/png", "", swaggerUI("favicon-32x32.png")},
}

func swaggerUI(file string) []byte {
	content, err := static.FS.ReadFile(file)
	if err != nil {
		panic(err) // the embedded file is always there
	}
	return content
}

var openAPIPage = page{"application/yaml", "", openAPI}

var docs = page{echo.MIMETextHTMLCharsetUTF8, "", docsPage}

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
