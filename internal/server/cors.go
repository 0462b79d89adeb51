package server

import (
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
)

// preflightRoute stands in log and metrics for the route of a preflight, which has a 204
// without a deletion.
const preflightRoute = "preflight"

// cors lets web pages of CORSOrigins use this service (Fetch Standard, 3.3). A page sends
// its token itself: browsers add no credentials of their own.
func (s *Server) cors() echo.MiddlewareFunc {
	return middleware.CORSWithConfig(middleware.CORSConfig{
		// Not AllowOrigins, where * and ? would be wildcards.
		AllowOriginFunc: func(origin string) (bool, error) { return slices.Contains(s.CORSOrigins, origin), nil },
		AllowMethods:    []string{http.MethodDelete},
		AllowHeaders:    []string{echo.HeaderAuthorization, headerIdempotencyKey, headerRequestID, echo.HeaderContentType},
		ExposeHeaders:   []string{headerRequestID, headerIdempotencyKey, headerReplayed, echo.HeaderRetryAfter, echo.HeaderWWWAuthenticate},
		MaxAge:          600,
	})
}

// isPreflight reports whether a browser asks which requests a page of CORSOrigins may send.
// Such a request has no token.
func (s *Server) isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get(echo.HeaderAccessControlRequestMethod) != "" &&
		slices.Contains(s.CORSOrigins, r.Header.Get(echo.HeaderOrigin))
}
