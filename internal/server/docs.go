package server

import (
	_ "embed"
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/swaggest/swgui/v5/static"
)

// docsPage shows openAPI to people, with Swagger UI.
//
//go:embed docs/index.html
var docsPage []byte

//go:embed docs/start.js
var docsScript []byte

// docsPolicy keeps the page to this host: a token typed into it goes nowhere
// else.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// A docsAsset is a file that the page loads.
type docsAsset struct {
	contentType, encoding string
	content               []byte
}

// docsAssets has all of them. Swagger UI's are embedded compressed and sent so:
// every browser takes gzip.
var docsAssets = map[string]docsAsset{
	"start.js":             {"text/javascript; charset=utf-8", "", docsScript},
	"swagger-ui-bundle.js": {"text/javascript; charset=utf-8", "gzip", swaggerUI("swagger-ui-bundle.js.gz")},
	"swagger-ui.css":       {"text/css; charset=utf-8", "gzip", swaggerUI("swagger-ui.css.gz")},
	"favicon-32x32.png":    {"image/png", "", swaggerUI("favicon-32x32.png")},
}

func swaggerUI(file string) []byte {
	content, err := static.FS.ReadFile(file)
	if err != nil {
		panic(err) // it is embedded
	}
	return content
}

func serveDocs(c echo.Context) error {
	header := c.Response().Header()
	header.Set(echo.HeaderContentSecurityPolicy, docsPolicy)
	header.Set(echo.HeaderXContentTypeOptions, "nosniff")
	return c.HTMLBlob(http.StatusOK, docsPage)
}

func serveDocsAsset(c echo.Context) error {
	asset, ok := docsAssets[c.Param("asset")]
	if !ok {
		return errNoRoute
	}
	header := c.Response().Header()
	header.Set(echo.HeaderXContentTypeOptions, "nosniff")
	if asset.encoding != "" {
		header.Set(echo.HeaderContentEncoding, asset.encoding)
	}
	return c.Blob(http.StatusOK, asset.contentType, asset.content)
}
