//go:build slow && race

package main

// raceDetector is whether the service is to be built like these tests.
const raceDetector = true
