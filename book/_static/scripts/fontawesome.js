/* In place of the theme's 1.4 MB icon script: the pages draw their few icons
   from the web font, which they load anyway. */
window.FontAwesome = { library: { add() {} } };
