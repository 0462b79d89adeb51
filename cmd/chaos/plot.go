package main

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"plantstore/cmd/internal/witness"
)

// Size of the plot, and how finely it shows the points: of those that would lie on
// each other one is drawn.
const (
	plotWidth, plotHeight = 16 * vg.Inch, 7 * vg.Inch
	plotColumns, plotRows = 1600, 300
)

// A series is one kind of answers in the plot.
type series struct {
	name  string
	color color.Color
	has   func(witness.Answer) bool
}

func allSeries() []series {
	is := func(effects ...witness.Effect) func(witness.Answer) bool {
		return func(a witness.Answer) bool { return slices.Contains(effects, a.Effect()) }
	}
	return []series{
		{"deleted (204)", color.RGBA{0x2c, 0x7f, 0x4f, 0xff}, is(witness.Deleted)},
		{"404, 409", color.RGBA{0x2b, 0x5d, 0xb3, 0xff}, is(witness.NotThere, witness.Referred)},
		{"503", color.RGBA{0xd9, 0x82, 0x1c, 0xff}, is(witness.NotDeleted)},
		{"504, or no answer", color.RGBA{0xc0, 0x22, 0x2a, 0xff}, is(witness.Unknown, witness.Wrong)},
	}
}

// plot draws the latency of every deletion over time, each fault as a band, into a
// file. Its name says the format: svg.
func (r *report) plot(path string) error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("chaos, seed %d: %d violations", r.config.seed, len(r.violations))
	p.X.Label.Text = "seconds since the run began"
	p.Y.Label.Text = "milliseconds until the answer"
	p.Y.Scale = plot.LogScale{}
	p.Y.Tick.Marker = plot.LogTicks{Prec: -1}
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(2)
	p.X.Min, p.X.Max = 0, r.took.Seconds()*1.15 // with room for the legend
	p.Y.Min, p.Y.Max = 0.1, 100

	answers := r.answers()
	for _, a := range answers {
		p.Y.Max = max(p.Y.Max, milliseconds(a))
	}
	if err := r.plotFaults(p); err != nil {
		return fmt.Errorf("plot the faults: %w", err)
	}
	for _, s := range allSeries() {
		points := make(plotter.XYs, 0, len(answers))
		drawn := make(map[[2]int]bool)
		for _, a := range answers {
			if !s.has(a) {
				continue
			}
			x, y := a.Start.Seconds(), max(milliseconds(a), p.Y.Min)
			at := [2]int{int(x / p.X.Max * plotColumns), int(math.Log(y/p.Y.Min) / math.Log(p.Y.Max/p.Y.Min) * plotRows)}
			if !drawn[at] {
				drawn[at] = true
				points = append(points, plotter.XY{X: x, Y: y})
			}
		}
		scatter, err := plotter.NewScatter(points)
		if err != nil {
			return fmt.Errorf("plot the answers: %w", err)
		}
		scatter.GlyphStyle = draw.GlyphStyle{Color: s.color, Radius: vg.Points(1.2), Shape: draw.CircleGlyph{}}
		p.Add(scatter)
		p.Legend.Add(s.name, scatter)
	}
	if err := p.Save(plotWidth, plotHeight, path); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

// answers are those to all requests that were sent.
func (r *report) answers() []witness.Answer {
	var all []witness.Answer
	for i := range r.events.history {
		all = append(all, r.events.history[i].Requests()...)
	}
	for i := range r.events.tales {
		for _, o := range r.events.tales[i].Tale {
			if o.Do == deleteIt {
				all = append(all, o.Answer)
			}
		}
	}
	return slices.DeleteFunc(all, func(a witness.Answer) bool { return a.Unsent })
}

func milliseconds(a witness.Answer) float64 {
	return float64(a.End-a.Start) / float64(time.Millisecond)
}

// plotFaults draws a band for each fault. Those of one lane have a third of the height
// each, as they happen at the same time.
func (r *report) plotFaults(p *plot.Plot) error {
	height := math.Log(p.Y.Max / p.Y.Min)
	for i, k := range r.kinds {
		hue := float64(i) / float64(len(r.kinds))
		var bands []plotter.XYer
		bottom := p.Y.Min * math.Exp(height*float64(k.lane)/float64(lanes))
		top := p.Y.Min * math.Exp(height*float64(k.lane+1)/float64(lanes))
		for _, f := range ofKind(r.events.faults, k.name) {
			from, to := f.Start.Seconds(), f.End.Seconds()
			bands = append(bands, plotter.XYs{{X: from, Y: bottom}, {X: to, Y: bottom}, {X: to, Y: top}, {X: from, Y: top}})
		}
		if len(bands) == 0 {
			continue
		}
		polygon, err := plotter.NewPolygon(bands...)
		if err != nil {
			return err
		}
		polygon.Color = pale(hue)
		polygon.LineStyle.Width = 0
		p.Add(polygon)
		p.Legend.Add(k.name, polygon)
	}
	return nil
}

// pale is a light colour of a hue, from 0 to 1.
func pale(hue float64) color.Color {
	channel := func(shift float64) uint8 {
		return uint8(205 + 45*math.Cos(2*math.Pi*(hue+shift)))
	}
	return color.RGBA{channel(0), channel(1.0 / 3), channel(2.0 / 3), 0xff}
}
