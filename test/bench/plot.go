package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// plot draws the results: how fast each subject drains, and what an event costs along each axis.
func plot(path, dir string) error {
	r, err := readRows(path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, svg := range map[string]string{"drain.svg": r.bars(), "growth.svg": r.lines()} {
		if svg == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// colours are those of the subjects, distinguishable by colour-blind readers too.
var colours = []string{"#0072b2", "#999999", "#56b4e9", "#d55e00", "#009e73"}

// canvas collects the elements of a drawing.
type canvas struct {
	strings.Builder
	width, height float64
}

func (c *canvas) text(x, y float64, anchor, text string) {
	fmt.Fprintf(c, `<text x="%.0f" y="%.0f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, strings.NewReplacer("&", "&amp;", "<", "&lt;").Replace(text))
}

func (c *canvas) rect(x, y, w, h float64, fill string) {
	fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y, w, h, fill)
}

func (c *canvas) line(x1, y1, x2, y2 float64, stroke string, width float64) {
	fmt.Fprintf(c, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%.1f"/>`+"\n", x1, y1, x2, y2, stroke, width)
}

func (c *canvas) svg() string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="white"/>
%s</svg>
`, c.width, c.height, c.width, c.height, c.String())
}

// bars draws events a second for each load and subject.
func (r *rows) bars() string {
	if len(r.drains) == 0 {
		return ""
	}
	const left, right, thick, gap = 250.0, 520.0, 13.0, 14.0
	most := 0.0
	for _, l := range r.loads {
		for _, s := range subjects {
			if m := r.drainFigures(l.Name, s.Name, rate).median(); m > most {
				most = m
			}
		}
	}
	c := &canvas{width: left + right + 90}
	c.text(left, 20, "start", "events a second, from process start to the last row (median)")
	y := 34.0
	for i, s := range subjects {
		if !slices.ContainsFunc(r.drains, func(d drainRow) bool { return d.Subject == s.Name }) {
			continue
		}
		c.rect(left+float64(i)*130, y, 10, 10, colours[i])
		c.text(left+float64(i)*130+15, y+10, "start", s.Name)
	}
	y += 26
	for _, l := range r.loads {
		top := y
		for i, s := range subjects {
			v := r.drainFigures(l.Name, s.Name, rate).median()
			if math.IsNaN(v) {
				continue
			}
			c.rect(left, y, right*v/most, thick-2, colours[i])
			c.text(left+right*v/most+5, y+thick-3, "start", fmt.Sprintf("%.0f", v))
			y += thick
		}
		c.text(left-8, (top+y)/2+4, "end", l.About)
		y += gap
	}
	c.height = y
	return c.svg()
}

// lines draws CPU-s/M of the daemon for each axis of growth, over the logarithm of its value.
func (r *rows) lines() string {
	if len(r.growth) == 0 {
		return ""
	}
	const left, top, width, height, between = 60.0, 40.0, 300.0, 150.0, 70.0
	axes := map[string][]axisPoint{}
	var order []string
	most := 0.0
	for _, k := range r.growthPoints() {
		if axes[k.axis] == nil {
			order = append(order, k.axis)
		}
		axes[k.axis] = append(axes[k.axis], k)
		most = max(most, r.growthOf(k, client).median())
	}
	most = math.Ceil(most)
	c := &canvas{width: 2*(left+width) + 40, height: top + math.Ceil(float64(len(order))/2)*(height+between)}
	c.text(left, 20, "start", "CPU seconds of the daemon per million events (median)")
	for i, axis := range order {
		x0, y0 := left+float64(i%2)*(width+left), top+float64(i/2)*(height+between)
		points := axes[axis]
		low, high := math.Log10(float64(points[0].value)), math.Log10(float64(points[len(points)-1].value))
		c.line(x0, y0+height, x0+width, y0+height, "#333", 1)
		c.line(x0, y0, x0, y0+height, "#333", 1)
		c.text(x0-6, y0+8, "end", fmt.Sprintf("%.0f", most))
		c.text(x0-6, y0+height, "end", "0")
		c.text(x0+width/2, y0+height+34, "middle", axis)
		var px, py float64
		for j, k := range points {
			x := x0 + 15 + (width-40)*(math.Log10(float64(k.value))-low)/max(high-low, 1e-9)
			y := y0 + height*(1-r.growthOf(k, client).median()/most)
			fmt.Fprintf(c, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x, y, colours[0])
			c.text(x, y0+height+16, "middle", short(k.value))
			if j > 0 {
				c.line(px, py, x, y, colours[0], 1.5)
			}
			px, py = x, y
		}
	}
	return c.svg()
}

func short(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return fmt.Sprintf("%dM", n/1_000_000)
	case n >= 1000 && n%1000 == 0:
		return fmt.Sprintf("%dk", n/1000)
	}
	return fmt.Sprint(n)
}
